"""What torch says of sizes that it keeps open: as index expressions with bounds, as what the program
computes, and as guards, of which none is added.
"""
