"""A results folder as one HTML file to read and to listen to: ``torch-mapss report``.

``content`` gathers what the page holds as JSON, ``tracks`` its sounds; ``page.html``, ``page.css``
and ``page.js`` show it. plotly's script comes from the installed package, so that the page needs no
network.
"""
