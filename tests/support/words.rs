//! A small random number generator (xorshift).

pub struct Words(pub u64);

impl Words {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Integer from -2 to 2.
    pub fn small(&mut self) -> f64 {
        (self.next() % 5) as f64 - 2.0
    }
}
