"""The central claims of the five papers and our tests of them: the tables of `docs/results/index.md`."""

from studies.claims import actol, decisionnce, icon, premier_taco, td_infonce

CLAIMS = (*decisionnce.CLAIMS, *actol.CLAIMS, *premier_taco.CLAIMS, *icon.CLAIMS, *td_infonce.CLAIMS)
"""The claims, paper by paper."""
