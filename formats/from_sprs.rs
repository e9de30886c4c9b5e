//! Bridge to sprs.
