"""Downloads from a model hub, onto the host that will need them, laid out as huggingface_hub lays them out."""
