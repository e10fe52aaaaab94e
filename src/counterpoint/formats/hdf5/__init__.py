"""HDF5 files of robomimic and LIBERO."""
