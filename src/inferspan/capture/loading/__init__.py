"""Loading of models: ``from_pretrained()`` from its entry to its end, and the checkpoint it reads."""
