/* A stand-in for libnvidia-ml.so.1 with a GPU, and a second one that only has another address. Signatures,
   units and layouts are those of nvml.h; the test sets the variables that begin with "fake_". */

#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct gpu;
static int the_gpu;
#define GPU ((struct gpu *)&the_gpu)

int fake_clock = 1400, fake_max_clock = 1980, fake_temperature = 61;
int fake_power = 700000, fake_limit = 700000;
int fake_mig = 0, fake_busy = 0, fake_links = 18, fake_active = 18;
int fake_old = 0;  /* a driver before 535: without the newer names */
int fake_ecc = 1, fake_errors = 0, fake_pending = 0, fake_failed = 0;
int fake_error = 0;  /* what all functions return; not 0: the GPU is lost */
unsigned long long fake_reasons = 0, fake_used = 600ull << 20;

static int one(unsigned *out, int value) {
  if (fake_error) return fake_error;
  *out = value;
  return SUCCESS;
}

static int text(char *out, unsigned size, const char *value) {
  if (strlen(value) >= size) return INSUFFICIENT_SIZE;
  strcpy(out, value);
  return SUCCESS;
}

int nvmlInit_v2(void) { return SUCCESS; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct gpu **out) {
  *out = GPU;
  return strcmp(address, "0000:3b:00.0") && strcmp(address, "0000:5d:00.0") ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetClockInfo(struct gpu *g, int type, unsigned *out) {
  return one(out, type == 1 ? fake_clock : 2619);
}
int nvmlDeviceGetMaxClockInfo(struct gpu *g, int type, unsigned *out) { return one(out, fake_max_clock); }
int nvmlDeviceGetPowerUsage(struct gpu *g, unsigned *out) { return one(out, fake_power); }
int nvmlDeviceGetEnforcedPowerLimit(struct gpu *g, unsigned *out) { return one(out, fake_limit); }

int nvmlDeviceGetTemperature(struct gpu *g, int sensor, unsigned *out) {
  return one(out, fake_temperature);
}
int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *g, unsigned long long *out) {
  *out = fake_reasons;
  return fake_old ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *g, unsigned long long *out) {
  *out = fake_reasons;
  return fake_old ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkState(struct gpu *g, unsigned link, unsigned *out) {
  return link < (unsigned)fake_links ? one(out, link < (unsigned)fake_active) : INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(struct gpu *g, char *out, unsigned size) {
  return text(out, size, "GPU-11111111-2222-3333-4444-555555555555");
}
int nvmlDeviceGetMigMode(struct gpu *g, unsigned *now, unsigned *pending) {
  *pending = 0;
  return fake_mig < 0 ? NOT_SUPPORTED : one(now, fake_mig);
}

int nvmlDeviceGetEccMode(struct gpu *g, unsigned *now, unsigned *pending) {
  *pending = fake_ecc;
  return one(now, fake_ecc);
}
int nvmlDeviceGetTotalEccErrors(struct gpu *g, int type, int since, unsigned long long *out) {
  *out = fake_errors;
  if (fake_error) return fake_error;
  return type == 1 && since == 0 ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetRemappedRows(struct gpu *g, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
  *c = *u = 0;
  *pending = fake_pending;
  *failed = fake_failed;
  return fake_error ? fake_error : SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct gpu *g, unsigned long long *total_free_used) {
  total_free_used[0] = 80ull << 30;
  total_free_used[1] = (80ull << 30) - fake_used;
  total_free_used[2] = fake_used;
  return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(struct gpu *g, unsigned *gpu_memory) {
  gpu_memory[0] = fake_busy;
  gpu_memory[1] = 1;
  return fake_mig > 0 ? NOT_SUPPORTED : SUCCESS;
}
