"""HDF5 files of robomimic, LIBERO, IsaacLab and ALOHA."""
