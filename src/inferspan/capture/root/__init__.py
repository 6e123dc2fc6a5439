"""Plain forward passes of an instrumented model: one function around each, or a pair of hooks where no function can stand there."""
