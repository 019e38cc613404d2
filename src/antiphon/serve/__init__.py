"""An OpenAI-compatible server over the engine, its metrics, and a page that shows who wrote what.

Needs ``pip install 'antiphon[serve]'``.
"""
