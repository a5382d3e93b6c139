"""verl's end-to-end levels of a Megatron-Bridge change, as Megatron-Bridge's guide "verl E2E testing" has them."""
