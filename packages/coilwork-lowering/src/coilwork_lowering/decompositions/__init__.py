"""What AOTAutograd takes apart before lowering: `table` says which operators, `own` holds what differs from
torch's, by family in the other files.
"""
