"""What runs on the far side of the wall: the fork server, the supervisors of the boxes, and the kernel's locks.

Standard library only, and as little of it as possible: every process of a box starts as a copy of this interpreter.
"""
