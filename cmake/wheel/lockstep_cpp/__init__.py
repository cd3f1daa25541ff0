"""Files of the C++ library lockstep, which has no Python interface: see `python -m lockstep_cpp --help`."""
