"""What a program neither takes nor gives as it is: inputs and results that are settled before or after it
runs.
"""
