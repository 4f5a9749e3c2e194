"""The Debian channel: a small conda channel made from Debian's packages, for machines that can reach no
conda channel.

``debian`` makes and renews it, ``contents`` lists what is in it, ``debs`` downloads and unpacks Debian
packages, ``packages`` and ``python`` turn them into conda packages, and ``package`` writes these.
"""
