//! Report of `ptxas -v`: registers, stack, spills and shared memory of each entry, and warnings about hidden losses of
//! speed.

/// Resources of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Name of the entry.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of spill stores.
    pub spill_stores: u32,
    /// Bytes of spill loads.
    pub spill_loads: u32,
    /// Bytes of stack frame, in local memory.
    pub stack: u32,
    /// Bytes of static shared memory. The launch sets the dynamic part.
    pub smem: u32,
}

/// An advisory of ptxas with a code, such as C7508 (setmaxnreg ignored) or C7514 (wgmma serialised).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Code: `C` and four digits.
    pub code: String,
    /// Whole line of the message.
    pub text: String,
}

/// Report of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries, sorted by name.
    pub kernels: Vec<Resources>,
    /// Advisories with a code.
    pub warnings: Vec<Warning>,
}

/// Reads the messages of `ptxas -v`.
pub fn parse(messages: &str) -> Report {
    let mut report = Report::default();
    let mut lines = messages.lines().peekable();
    let mut entry: Option<Resources> = None;
    while let Some(line) = lines.next() {
        if let Some(code) = code(line) {
            report.warnings.push(Warning { code: code.to_string(), text: line.trim().to_string() });
        }
        if let Some(name) = quoted_after(line, "Compiling entry function") {
            report.kernels.extend(
                entry.replace(Resources { name: name.to_string(), ..Resources::default() }),
            );
        }
        let Some(entry) = &mut entry else { continue };
        if let Some(name) = line.split("Function properties for ").nth(1) {
            // Device functions that were not inlined have their own properties. They are added to those of the entry.
            let own = name.trim() == entry.name;
            if let Some(next) = lines.next_if(|next| next.contains("bytes stack frame")) {
                let stack = number_before(next, "bytes stack frame");
                entry.stack = if own { stack } else { entry.stack.max(stack) };
                entry.spill_stores += number_before(next, "bytes spill stores");
                entry.spill_loads += number_before(next, "bytes spill loads");
            }
        }
        if line.contains(" registers") && line.contains("Used ") {
            entry.registers = number_before(line, "registers");
            entry.smem = number_before(line, "bytes smem");
        }
    }
    report.kernels.extend(entry);
    report.kernels.sort_by(|a, b| a.name.cmp(&b.name));
    report
}

/// Returns `C` and four digits that are in parentheses in the line.
fn code(line: &str) -> Option<&str> {
    line.match_indices("(C").find_map(|(at, _)| {
        let code = line.get(at + 1..at + 6)?;
        let digits = code[1..].bytes().all(|byte| byte.is_ascii_digit());
        (digits && line.get(at + 6..at + 7) == Some(")")).then_some(code)
    })
}

fn quoted_after<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    line.split(words).nth(1)?.split('\'').nth(1)
}

/// Returns the number before `unit`; 0 if the line does not contain the unit.
fn number_before(line: &str, unit: &str) -> u32 {
    let Some(at) = line.find(unit) else { return 0 };
    line[..at].split_whitespace().next_back().and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = "\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements.
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spmm_b' for 'sm_90a'
ptxas info    : Function properties for spmm_b
    512 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 512 bytes cumulative stack size, 1024 bytes smem, 552 bytes cmem[0]
ptxas info    : Compile time = 8.918 ms
ptxas info    : Compiling entry function 'spmm_a' for 'sm_90a'
ptxas info    : Function properties for spmm_a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
";

    #[test]
    fn entries_and_warnings() {
        let report = parse(MESSAGES);
        let a = Resources { name: "spmm_a".into(), registers: 8, ..Resources::default() };
        let b = Resources {
            name: "spmm_b".into(),
            registers: 168,
            spill_stores: 8,
            spill_loads: 12,
            stack: 512,
            smem: 1024,
        };
        assert_eq!(report.kernels, [a, b]);
        assert_eq!(report.warnings.len(), 1);
        assert_eq!(report.warnings[0].code, "C7508");
    }
}
