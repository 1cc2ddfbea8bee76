"""Decide which producers are computed inside their consumers.

Open `inline.py` first. `substitute.py` puts a body into another, `cost.py` weighs what that costs,
`check_sinking.py` says where run-time checks go, `template_fusion.py` makes prologues and epilogues.
"""
