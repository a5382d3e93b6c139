"""Whether what was asked for is what verl resolved, and whether that goes through Megatron-Bridge. The command is no
evidence of either."""

from __future__ import annotations

from ci_tasks.errors import some
from ci_tasks.features.verl.judge.requested_settings import RequestedSetting, requested_settings
from ci_tasks.features.verl.judge.resolved_settings import MISSING, equals_requested
from ci_tasks.features.verl.judge.training_run import RERUN_AS_ASKED, SEE_PROBE, TrainingRun, has_critic, line_place
from ci_tasks.features.verl.levels.criterion import Criterion, contradicted, not_seen, shown
from ci_tasks.features.verl.levels.levels import SETTINGS

AS_ASKED = "settings as asked"
NON_VANILLA = "non-vanilla Bridge"
ENGINE = "rollout engine"
_MOST = 12  # settings in one sentence
_OTHER_VERL = "this verl does not have these settings: use a revision that has them, or do not ask for them"


def settings_as_asked(run: TrainingRun) -> Criterion:
    """Every setting that a variable or an override asks for, of every role, as verl resolved it; and what the roles'
    own workers were given of it."""
    settings, asked = run.facts.settings, requested_settings(run.training, run.script)
    different = [
        _differs(dotted, setting, role.values[dotted], f"{role.role}, {role.process}")
        for role in run.hooked.roles
        for dotted, setting in asked.items()
        if dotted in role.values and not equals_requested(setting.value, role.values[dotted])
    ]
    if not settings.resolved and not different:
        text = "the log does not show verl's resolved settings, and the command alone is not trusted"
        return not_seen(AS_ASKED, text, SEE_PROBE)
    different[:0] = [
        _differs(dotted, setting, settings.get(dotted))
        for dotted, setting in asked.items()
        if settings.get(dotted) is not MISSING and not equals_requested(setting.value, settings.get(dotted))
    ]
    # What a revision does not have is off there.
    missing = [
        dotted
        for dotted, setting in asked.items()
        if settings.get(dotted) is MISSING and setting.value not in ("False", "null")
    ]
    if different:
        return contradicted(AS_ASKED, some(different, _MOST, "; "), settings.place, RERUN_AS_ASKED)
    if missing:
        return not_seen(
            AS_ASKED, f"not in the resolved settings: {some(missing, _MOST, '; ')}", _OTHER_VERL, settings.place
        )
    roles = ", ".join(sorted({_role(dotted) for dotted in asked}))
    return shown(AS_ASKED, f"all {len(asked)}, of {roles}", settings.place)


def non_vanilla(run: TrainingRun) -> Criterion:
    """Whether the run went through Megatron-Bridge, whoever asked for that: another shows nothing of it."""
    settings, providers = run.facts.settings, run.hooked.providers
    vanilla = run.facts.construction.get("vanilla")
    if vanilla is not None:
        text = "a model was built past Megatron-Bridge: with it, verl prints no TF config"
        return contradicted(NON_VANILLA, text, line_place(vanilla), RERUN_AS_ASKED)
    if run.hooked.models and run.hooked.watches_providers and not providers:
        model = run.hooked.models[0]
        text = f"{model.built.model or 'a model'} was built without a provider of Megatron-Bridge"
        return contradicted(NON_VANILLA, text, model.process, RERUN_AS_ASKED)
    if not settings.resolved:
        if providers:
            return shown(NON_VANILLA, f"built by {', '.join(providers)} of Megatron-Bridge")
        return not_seen(NON_VANILLA, "the resolved settings were not seen", SEE_PROBE)
    needed = [("USE_MBRIDGE", "True"), ("VANILLA_MBRIDGE", "False")]
    if has_critic(settings):
        needed.append(("VALUE_VANILLA_MBRIDGE", "False"))
    wrong = [
        (name, settings.get(SETTINGS[name]))
        for name, value in needed
        if not equals_requested(value, settings.get(SETTINGS[name]))
    ]
    if not wrong:
        built = f"; built by {', '.join(providers)}" if providers else ""
        return shown(NON_VANILLA, ", ".join(f"{name}={value}" for name, value in needed) + built, settings.place)
    text = ", ".join(f"{name}={value_text(value)}" for name, value in wrong)
    if any(value is MISSING for _, value in wrong):
        return not_seen(NON_VANILLA, text, _OTHER_VERL, settings.place)
    return contradicted(NON_VANILLA, text, settings.place, RERUN_AS_ASKED)


def rollout_engine(run: TrainingRun) -> Criterion:
    """Whether rollouts came from the engine that was asked for: by its servers' class, else by what verl resolved,
    which the guide takes as well."""
    wanted, resolved = run.training.env.get("ENGINE", ""), run.facts.settings.get(SETTINGS["ENGINE"])
    wrong = [name for name in run.hooked.engines if not name.lower().startswith(wanted.lower())]
    if wrong:
        return contradicted(ENGINE, f"{wrong[0]} served, not {wanted}", run.hooked.engines[wrong[0]], RERUN_AS_ASKED)
    if run.hooked.engines:
        name, place = next(iter(run.hooked.engines.items()))
        return shown(ENGINE, f"{wanted}: {name} served", place)
    if not run.facts.settings.resolved or resolved is MISSING:
        return not_seen(ENGINE, "neither its servers nor the resolved settings were seen", SEE_PROBE)
    text = f"{value_text(resolved)} in the resolved settings; no process noted its server"
    if not equals_requested(wanted, resolved):
        return contradicted(ENGINE, text, run.facts.settings.place, RERUN_AS_ASKED)
    return shown(ENGINE, text, run.facts.settings.place)


def value_text(value: object) -> str:
    return "null" if value is None else str(value)


def _differs(dotted: str, setting: RequestedSetting, resolved: object, where: str = "") -> str:
    asked = "" if setting.by.endswith(f"{dotted}={setting.value}") else f" ({setting.by})"
    return f"{dotted}={value_text(resolved)}{f' in {where}' if where else ''}, not {setting.value}{asked}"


def _role(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "actor_rollout_ref" else parts[0]
