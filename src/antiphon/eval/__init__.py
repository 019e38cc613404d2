"""Evaluation: tasks, graders, statistics, runner and report.

Quality and speed are measured in the same run, and no figure goes without its interval.
"""
