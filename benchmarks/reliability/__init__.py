"""kvstore and other stores under the same damage; ``benchmarks/reliability_peers.py`` runs it."""
