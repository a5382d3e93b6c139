"""What a suite would ship: it notes the settings of toy.trainer once that is imported, and its checkpoints."""

MODULES = ("toy.trainer", "toy.broken")


def after_import(module, emit):  # type: ignore[no-untyped-def]
    if module.__name__ == "toy.broken":
        raise RuntimeError("no such trainer")
    emit("config", lr=module.LR, sizes={"tp": 2}, layers=(1, "two", float("nan")), text=lambda: "x" * 3)
    emit("bad", value=lambda: 1 / 0)
    save = module.save

    def noting_save(path):  # type: ignore[no-untyped-def]
        save(path)
        emit("checkpoint", path=path)

    module.save = noting_save
