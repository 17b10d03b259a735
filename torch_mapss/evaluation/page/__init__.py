"""A results folder as one HTML file to read and to listen to: ``torch-mapss report``.

``content`` gathers what the page shows as JSON, ``tracks`` encodes its sounds and spectrograms.
``page.html`` and ``page.css`` lay it out; ``format.js``, ``charts.js``, ``player.js`` and
``page.js``, in that order, fill it. The page needs no network and no library.
"""
