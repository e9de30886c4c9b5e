//! Random mutations of inputs, reproducible by seed.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound.max(1) as u64) as usize
    }

    /// Returns an input of the corpus with one to eight changes.
    pub fn changed(&mut self, corpus: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
        let mut bytes = corpus[self.below(corpus.len())].clone();
        let most = self.below(8);
        for _ in 0..=most {
            self.change(&mut bytes, corpus, words);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str]) {
        if bytes.is_empty() {
            bytes.push(self.word() as u8);
        }
        let at = self.below(bytes.len());
        match self.below(12) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.word() as u8,
            2 => bytes[at] = bytes[at].wrapping_add(1),
            3 => bytes.insert(at, self.word() as u8),
            4 => drop(bytes.remove(at)),
            5 if self.below(4) == 0 => bytes.truncate(at),
            6 => {
                // Duplicates a piece.
                let end = (at + 1 + self.below(16)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            7 => {
                // Replaces the end by that of another input.
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            8 => {
                let end = (at + 1 + self.below(8)).min(bytes.len());
                bytes.drain(at..end);
            }
            9 => {
                // Writes a number of four bytes, as in archives.
                let value = [0_u32, 1, 0xffff, 0x7fff_ffff, u32::MAX][self.below(5)];
                for (slot, byte) in bytes[at..].iter_mut().zip(value.to_le_bytes()) {
                    *slot = byte;
                }
            }
            _ if !words.is_empty() => {
                let word = words[self.below(words.len())].as_bytes();
                let end = (at + self.below(word.len() + 1)).min(bytes.len());
                bytes.splice(at..end, word.iter().copied());
            }
            _ => {
                let other = self.below(bytes.len());
                bytes.swap(at, other);
            }
        }
    }
}
