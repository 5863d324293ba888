"""What people carry from one checkpoint to another, moved by a gauge and written in its own format.

Steering vectors, dictionaries of sparse autoencoders, LoRA adapters and optimizer states;
`gauge.json` beside each says which base model it now belongs to.
"""
