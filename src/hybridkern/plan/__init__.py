"""The plan: sizes, budgets and rules in, a placement out. Everything runs on the CPU so far: nothing is planned yet."""
