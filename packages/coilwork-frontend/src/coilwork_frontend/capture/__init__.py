"""What Dynamo captured: made ready for AOTAutograd, and run in eager mode for calls that the compiled program
is not for.
"""
