class RayTaskError(Exception):
    """The text of an error in a worker. Its class is named after that error too: `RayTaskError(ValueError)`."""

    @classmethod
    def of(cls, name, text):
        return type(f"RayTaskError({name})", (cls,), {"__module__": "ray.exceptions"})(text)


class RayActorError(Exception):
    pass
