"""What a trainer outside needs to use adapters with a provider."""


def create_peft_hook(peft, training=True):
    """A pre-wrap hook: adapters must be there before the wrapper collects the trainable parameters."""

    def hook(model):
        return peft(model, training=training)

    return hook


def is_adapter(name):
    return ".adapter." in name
