// Lets the search work in pages opened from a disk. A browser starts no worker from a file: URL, so the
// worker's script runs in a hidden frame instead. Material's plugin "offline" would load such a script
// from another host; it adds none if the name of one in extra.polyfills contains iframe-worker.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inner = frame.contentWindow
      // What the worker sends goes to its owner, and not to its own window.
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inner.document.createElement("script")
      script.src = new URL(url, document.baseURI).href
      this.ready = new Promise((resolve, reject) => Object.assign(script, { onload: resolve, onerror: reject }))
      this.inner.document.body.append(script)
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
  window.Worker = window.IFrameWorker
}
