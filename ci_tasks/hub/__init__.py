"""What a model hub says of its repositories, asked through huggingface_hub. Nothing is downloaded here."""
