"""Publishing and pulling images: tags, attached documents, registries and OCI layouts."""
