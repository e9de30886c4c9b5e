#![allow(dead_code)]
mod random;
mod support;
