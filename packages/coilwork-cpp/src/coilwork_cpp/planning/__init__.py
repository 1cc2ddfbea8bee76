"""What loops a kernel gets, and what each walk of them does, before a line of it is written."""
