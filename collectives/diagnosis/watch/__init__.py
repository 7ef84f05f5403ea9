"""The processes under diagnosis: which rank each one is, how it ends, and when nothing moves any
more.
"""
