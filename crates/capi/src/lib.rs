//! The C interface of tiled files, as `include/tatami_io.h` describes it.
