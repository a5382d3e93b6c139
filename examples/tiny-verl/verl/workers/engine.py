"""One model in a Megatron worker, built through Megatron-Bridge, or through verl's own older bridge (vanilla).

Everything from the provider to the wrapped model happens here: what fails in this file is construction.
"""

from verl.failures import asked


def initialize_parallel(world_size, megatron):
    from megatron.core import parallel_state as mpu

    mpu.initialize_model_parallel(
        world_size,
        tensor=megatron["tensor_model_parallel_size"],
        pipeline=megatron["pipeline_model_parallel_size"],
        context=megatron["context_parallel_size"],
        expert=megatron["expert_model_parallel_size"],
        expert_tensor=megatron["expert_tensor_parallel_size"] or 1,
    )


class Engine:
    def __init__(self, role, model, settings, rank, trained=True):
        self.role, self.rank, self.trained, self.path = role, rank, trained, model["path"]
        self.megatron, self.lora = settings["megatron"], model["lora"]
        if not self.megatron["use_mbridge"]:
            raise AssertionError("use_mbridge must be True")
        build = self.build_vanilla if self.megatron["vanilla_mbridge"] else self.build
        self.wrapped = build()
        self.model = self.wrapped.module if trained else self.wrapped
        self.say("module: 1")

    def say(self, text):
        if self.rank == 0:
            print(text)

    def build(self):
        from verl.models.bridge import AutoBridge

        self.bridge = AutoBridge.from_hf_pretrained(self.path)
        provider = self.bridge.to_megatron_provider(load_weights=False)
        provider.apply_overrides_and_finalize(**self.provider_overrides())
        if self.lora["rank"] and self.trained:
            self.add_lora(provider)
        wrapped = provider.provide_distributed_model(self.ddp_config())
        self.bridge.load_hf_weights(wrapped.module if self.trained else wrapped, self.path)
        return wrapped

    def build_vanilla(self):
        from verl.models.mbridge import AutoBridge

        self.bridge = AutoBridge.from_config(self.path)
        return self.bridge.get_model(wrap_with_ddp=self.trained)

    def provider_overrides(self):
        names = (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
        )
        overrides = {name: self.megatron[name] for name in names} | self.megatron["override_transformer_config"]
        if self.megatron.get("router_replay", {}).get("mode", "disabled") != "disabled":
            overrides["moe_enable_routing_replay"] = True
            self.say(f"routing replay layers: {len(self.lora['target_modules'])}")
        if asked("provider"):
            overrides["tensor_model_parallel_size"] *= 2
        return overrides

    def add_lora(self, provider):
        from megatron.bridge.peft.lora import LoRA
        from megatron.bridge.peft.utils import create_peft_hook

        targets = list(self.lora["target_modules"]) + (["linear_nope"] if asked("lora-target") else [])
        lora = LoRA(target_modules=targets, dim=self.lora["rank"], alpha=self.lora["alpha"])
        provider.register_pre_wrap_hook(create_peft_hook(lora, training=not asked("no-trainable")))
        provider.register_pre_wrap_hook(self.show_adapters)

    def show_adapters(self, model):
        from megatron.bridge.peft.utils import is_adapter

        total = sum(parameter.numel() for _, parameter in model.named_parameters())
        adapters = sum(p.numel() for name, p in model.named_parameters() if is_adapter(name) and p.requires_grad)
        self.say(f"\n{'=' * 60}\nPEFT Adapter Information:")
        self.say(f"  Total parameters:     {total:,}")
        self.say(f"  Adapter parameters:   {adapters:,}")
        self.say(f"  Trainable percentage: {100 * adapters / total:.2f}%\n{'=' * 60}\n")
        return model

    def ddp_config(self):
        from megatron.bridge.training.config_utils import create_ddp_config

        fsdp = self.megatron["use_megatron_fsdp"]
        if fsdp and self.megatron["param_offload"]:
            raise NotImplementedError("parameters cannot be offloaded with Megatron-FSDP")
        return create_ddp_config(wrap_with_ddp=self.trained, use_megatron_fsdp=fsdp)

    def output(self):
        return self.model.forward()

    def step(self, gradient, learning_rate):
        return self.wrapped.step(gradient, learning_rate)

    @property
    def kind(self):
        return "PEFT adapter" if self.lora["rank"] else "sharded model"

    def state(self):
        return {name: parameter.value for name, parameter in self.model.named_parameters()}

    def load_state(self, state):
        for name, parameter in self.model.named_parameters():
            parameter.value = state[name]

    def save_hf(self, path):
        self.bridge.save_hf_weights(self.model, path, ["visual.patch_embed.weight"] if asked("save-keys") else [])
