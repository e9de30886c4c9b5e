//! Choices decoded from bytes. Past the end of the input, every choice is the first option.

pub struct Input<'a> {
    data: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { data }
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.data.split_first() else {
            return 0;
        };
        self.data = rest;
        *first
    }

    /// A number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A number that is mostly small, and sometimes at the limit of a type.
    pub fn number(&mut self) -> usize {
        const FAR: [usize; 12] = [
            31,
            32,
            33,
            255,
            256,
            65_535,
            65_536,
            (u32::MAX >> 1) as usize,
            u32::MAX as usize - 1,
            u32::MAX as usize,
            u32::MAX as usize + 1,
            usize::MAX,
        ];
        match self.byte() {
            byte @ 0..=223 => usize::from(byte) % 24,
            byte => FAR[usize::from(byte) % FAR.len()],
        }
    }

    /// An index array of up to `most` elements.
    pub fn array(&mut self, most: usize) -> Vec<u32> {
        let count = self.below(most + 1);
        (0..count).map(|_| self.number() as u32).collect()
    }
}
