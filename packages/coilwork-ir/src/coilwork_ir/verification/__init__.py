"""What the verifiers of the three IRs share: rules as data, scopes of names, and the checks of
scalar graphs.
"""
