"""Goal-reaching agents side by side (TD InfoNCE, Fig. 2, Appendix E.1)."""
