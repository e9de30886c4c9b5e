//! Bridge to ndarray.
