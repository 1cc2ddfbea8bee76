"""Around the call of a program: the roles of its inputs and results, applied."""
