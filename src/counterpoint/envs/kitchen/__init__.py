"""FrankaKitchen: the five tasks of R3M, their scripted experts and collection."""
