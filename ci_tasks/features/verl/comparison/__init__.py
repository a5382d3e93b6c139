"""Base and candidate Bridge, trained in turn: do they learn alike?"""
