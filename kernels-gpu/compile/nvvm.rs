//! NVIDIA's libNVVM as a second backend. It compiles the LLVM IR that rustc emits for nvptx64 to PTX, in place of
//! rustc's own NVPTX backend. The library is not linked: [`Nvvm::open`] opens it at run time.
//!
//! With `-nvvm-latest`, libNVVM reads the dialect of LLVM IR that rustc writes, for every architecture. [`rewrite`]
//! changes three things: the data layout, a version in the metadata, and the attribute `convergent`, which rustc does
//! not add to inline assembly.

use crate::device::{Backend, PTX_VERSION};
use crate::ptxas::from_wheel;
use crate::{Error, note_installed};
use libloading::Library;
use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// Version of the way from IR to PTX. Increment it with every change, so that older modules are not reused.
const RECIPE: u32 = 1;

/// File name of the library in the wheel.
const LIBRARY: &str = "libnvvm.so.4";

/// The data layout of NVVM IR. (NVVM IR Specification, "Data Layout".)
const DATA_LAYOUT: &str = "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64-\
    v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64";

/// Offset that is added to the number of an attribute group. The new group has the same attributes and `convergent`.
const CONVERGENT: u32 = 1000;

/// NVIDIA's compiler from LLVM IR to PTX.
pub struct Nvvm {
    /// Path of the library.
    pub path: PathBuf,
    /// Release and build, as in `13.5.37 (CL-39125733)`.
    pub version: String,
    api: Api,
}

impl Nvvm {
    /// Opens the library that `EINSPARSE_NVVM` names, or else the one that [`Nvvm::install`] unpacked into
    /// `target_dir`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the library is missing or too old.
    pub fn find(target_dir: &Path) -> Result<Nvvm, Error> {
        match env::var_os("EINSPARSE_NVVM") {
            Some(named) => Nvvm::open(Path::new(&named)),
            None => Nvvm::open(&installed(target_dir)),
        }
    }

    /// Downloads the wheel `nvidia-nvvm` and unpacks the library. Nothing outside of `target_dir` changes.
    pub fn install(target_dir: &Path) -> Result<Nvvm, Error> {
        let path = installed(target_dir);
        from_wheel("nvidia-nvvm", &format!("/{LIBRARY}"), &path)?;
        let nvvm = Nvvm::open(&path)?;
        note_installed(target_dir, &format!("nvvm {}", nvvm.version))?;
        Ok(nvvm)
    }

    fn open(path: &Path) -> Result<Nvvm, Error> {
        let invalid = |reason: String| Error::Invalid {
            reason: format!(
                "{}: {reason}; set EINSPARSE_NVVM to a libNVVM of release 13.5 or newer, or run `cargo xtask setup --compiler nvvm`",
                path.display()
            ),
        };
        // SAFETY: libNVVM is NVIDIA's; its initialisers only register LLVM's passes.
        let library = unsafe { Library::new(path) }.map_err(|error| invalid(error.to_string()))?;
        // The library is never unloaded, because LLVM registers handlers for the end of the process.
        let api = Api::of(Box::leak(Box::new(library))).map_err(|e| invalid(e.to_string()))?;
        // The library writes its release only into PTX, so a module without functions is compiled.
        let empty = format!(
            "target datalayout = \"{DATA_LAYOUT}\"\ntarget triple = \"nvptx64-nvidia-cuda\"\n"
        );
        let ptx = api.compile(&with_ir_version(empty), "compute_80").map_err(invalid)?;
        let version = version(&ptx).ok_or_else(|| invalid("its PTX names no release".into()))?;
        Ok(Nvvm { path: path.to_path_buf(), version, api })
    }
}

impl Backend for Nvvm {
    fn name(&self) -> String {
        format!("NVVM {}, recipe {RECIPE}", self.version)
    }

    fn compile(&self, ir: &str, arch: &str) -> Result<String, Error> {
        let invalid = |reason: String| Error::Invalid {
            reason: format!("NVVM {} for {arch}: {reason}", self.version),
        };
        let ir = rewrite(ir).map_err(invalid)?;
        let ptx = self.api.compile(&ir, &arch.replace("sm_", "compute_")).map_err(invalid)?;
        with_header(&ptx, arch).map_err(invalid)
    }
}

fn installed(target_dir: &Path) -> PathBuf {
    target_dir.join("toolchain").join("nvvm").join(LIBRARY)
}

/// Converts rustc's LLVM IR to NVVM IR.
///
/// Passes of LLVM may copy, sink or hoist a call unless it is `convergent`. Instructions that several threads execute
/// together (barriers, shuffles, mma) must not move. All inline assembly with side effects or with `.sync` therefore
/// becomes convergent, and so do the functions that contain it.
fn rewrite(ir: &str) -> Result<String, String> {
    let mut text = String::with_capacity(ir.len() + ir.len() / 64);
    let mut layouts = 0;
    for line in ir.lines() {
        if line.starts_with("target datalayout = ") {
            let _ = write!(text, "target datalayout = \"{DATA_LAYOUT}\"");
            layouts += 1;
        } else if line.starts_with("define ") || is_convergent_asm(line) {
            let (start, group, end) = attribute_group(line)
                .ok_or_else(|| format!("expected attributes (`#` and a number), found `{line}`"))?;
            let _ = write!(text, "{start}#{}{end}", group + CONVERGENT);
        } else {
            text += line;
            if let Some((number, attributes)) = attributes(line) {
                let convergent = number + CONVERGENT;
                let word = if attributes.contains("convergent ") { "" } else { "convergent " };
                let _ = write!(text, "\nattributes #{convergent} = {{ {word}{attributes}");
            }
        }
        text.push('\n');
    }
    match layouts {
        1 => Ok(with_ir_version(text)),
        _ => Err(format!("expected one `target datalayout` in the LLVM IR, found {layouts}")),
    }
}

/// Whether the line calls inline assembly that must not move to other control flow.
fn is_convergent_asm(line: &str) -> bool {
    let Some((call, assembly)) = line.split_once(" asm ") else { return false };
    call.contains("call ") && (assembly.starts_with("sideeffect ") || assembly.contains(".sync"))
}

/// Splits a line at the number of its last attribute group: text before it, number, text after it.
fn attribute_group(line: &str) -> Option<(&str, u32, &str)> {
    let (start, rest) = line.rsplit_once(" #")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, end) = rest.split_at(digits);
    Some((&line[..start.len() + 1], number.parse().ok()?, end))
}

/// Number and content of `attributes #7 = { content`.
fn attributes(line: &str) -> Option<(u32, &str)> {
    let (number, attributes) = line.strip_prefix("attributes #")?.split_once(" = { ")?;
    Some((number.parse().ok()?, attributes))
}

/// Adds the version of NVVM IR to the module, under an unused number: metadata are numbered consecutively.
fn with_ir_version(mut ir: String) -> String {
    let number = ir.lines().filter(|line| line.starts_with('!')).count();
    let _ = write!(ir, "\n!nvvmir.version = !{{!{number}}}\n!{number} = !{{i32 2, i32 0}}\n");
    ir
}

/// Replaces the PTX version by the one that the project uses: libNVVM declares the newest version that it supports.
/// ptxas rejects instructions that are newer than the declared version.
fn with_header(ptx: &str, arch: &str) -> Result<String, String> {
    let line = |start: &str| {
        let found = ptx.lines().find(|line| line.starts_with(start));
        found.ok_or_else(|| format!("expected a line `{start}` in the PTX, found none"))
    };
    let (version, target) = (line(".version ")?, line(".target ")?);
    let targets = target[".target ".len()..].split(',').next().unwrap_or_default().trim();
    if targets != arch {
        return Err(format!("expected `.target {arch}` in the PTX, found `{target}`"));
    }
    Ok(ptx.replacen(version, &format!(".version {PTX_VERSION}"), 1))
}

/// Release and build, from the comments at the start of libNVVM's PTX.
fn version(ptx: &str) -> Option<String> {
    let after = |word: &str| {
        let rest = ptx.split_once(word)?.1;
        rest.split_whitespace().next()
    };
    let (release, build) = (after("release ")?, after("Build ID: ")?);
    let release = after(", V").unwrap_or(release);
    Some(format!("{release} ({build})"))
}

type Program = *mut c_void;

/// Functions of the library. (nvvm.h)
struct Api {
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(*mut Program) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    add: unsafe extern "C" fn(Program, *const c_char, usize, *const c_char) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    result: Text,
    log: Text,
}

/// A function that returns the size of a text, including the terminating zero, and one that writes the text.
type Text = (
    unsafe extern "C" fn(Program, *mut usize) -> c_int,
    unsafe extern "C" fn(Program, *mut c_char) -> c_int,
);

impl Api {
    fn of(library: &'static Library) -> Result<Api, libloading::Error> {
        // SAFETY: names and types are those of nvvm.h, and the library stays loaded.
        unsafe {
            Ok(Api {
                error: *library.get(b"nvvmGetErrorString\0")?,
                create: *library.get(b"nvvmCreateProgram\0")?,
                destroy: *library.get(b"nvvmDestroyProgram\0")?,
                add: *library.get(b"nvvmAddModuleToProgram\0")?,
                compile: *library.get(b"nvvmCompileProgram\0")?,
                result: (
                    *library.get(b"nvvmGetCompiledResultSize\0")?,
                    *library.get(b"nvvmGetCompiledResult\0")?,
                ),
                log: (
                    *library.get(b"nvvmGetProgramLogSize\0")?,
                    *library.get(b"nvvmGetProgramLog\0")?,
                ),
            })
        }
    }

    /// Compiles NVVM IR to PTX. The library compiles programs of several threads at the same time.
    fn compile(&self, ir: &str, arch: &str) -> Result<String, String> {
        // `-fma=0` keeps multiplications and additions separate, as in Rust, so results equal those of rustc's backend.
        let arch = CString::new(format!("-arch={arch}")).map_err(|error| error.to_string())?;
        let options = [arch.as_c_str(), c"-nvvm-latest", c"-opt=3", c"-fma=0"];
        let pointers = options.map(CStr::as_ptr);
        let mut program = null_mut();
        // SAFETY: the handle is created first and destroyed last; every pointer is to memory that outlives the call, of
        // the size that is passed with it.
        unsafe {
            self.check((self.create)(&mut program), None)?;
            let mut status = (self.add)(program, ir.as_ptr().cast(), ir.len(), c"kernels".as_ptr());
            if status == 0 {
                status = (self.compile)(program, pointers.len() as c_int, pointers.as_ptr());
            }
            let result = match self.check(status, Some(program)) {
                Ok(()) => self.text(self.result, program),
                Err(reason) => Err(reason),
            };
            (self.destroy)(&mut program);
            result
        }
    }

    /// Converts a status to an error with its name and the messages of the program.
    ///
    /// # Safety
    /// `program` is a program of the library.
    unsafe fn check(&self, status: c_int, program: Option<Program>) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a static text for any number.
        let name = unsafe { CStr::from_ptr((self.error)(status)) }.to_string_lossy().into_owned();
        // SAFETY: `program` is a program of the library.
        let log = program.map(|program| unsafe { self.text(self.log, program) });
        let log = log.and_then(Result::ok).unwrap_or_default();
        Err(format!("{name}: {}", log.trim()))
    }

    /// # Safety
    /// `program` is a program of the library.
    unsafe fn text(&self, (size, write): Text, program: Program) -> Result<String, String> {
        let mut bytes = 0;
        // SAFETY: the library writes one number.
        unsafe { self.check(size(program, &mut bytes), None)? };
        let mut text = vec![0_u8; bytes];
        // SAFETY: the library writes as many bytes as `size` returned.
        unsafe { self.check(write(program, text.as_mut_ptr().cast()), None)? };
        text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(bytes));
        String::from_utf8(text).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kernel, Spec, ptx};

    const IR: &str = r#"target datalayout = "e-p6:32:32-i64:64"
target triple = "nvptx64-nvidia-cuda"

module asm ".extern .shared .align 1024 .b8 shared_arena[];"

define ptx_kernel void @a([2 x i64] %0) unnamed_addr #0 {
  tail call void asm sideeffect "bar.sync 1, 64;", "~{memory}"() #5, !srcloc !1
  %1 = tail call i32 asm "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r"(i32 0) #7, !srcloc !1
  %2 = tail call i32 asm "prmt.b32 $0, $1, $1, 0;", "=r,r"(i32 %1) #7
  tail call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) #4
  ret void
}

declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) #4

attributes #0 = { nounwind "target-cpu"="sm_80" }
attributes #4 = { convergent nocallback nounwind }
attributes #5 = { nounwind }
attributes #7 = { nounwind memory(none) }

!llvm.module.flags = !{!0}

!0 = !{i32 8, !"PIC Level", i32 2}
!1 = !{i64 480181638771864}
"#;

    const PTX: &str = "//\n// Compiler Build ID: CL-39125733\n// Cuda compilation tools, release 13.5, V13.5.37\n//\n\n\
        .version 9.5\n.target sm_90a\n.address_size 64\n\n.visible .entry a(\n\t.param .align 8 .b8 a_param_0[128]\n)\n{\n\
        \tret;\n}\n";

    #[test]
    fn data_layout_is_replaced_once() {
        let text = rewrite(IR).unwrap();
        assert!(text.starts_with(&format!("target datalayout = \"{DATA_LAYOUT}\"\n")), "{text}");
        assert_eq!(text.matches("datalayout").count(), 1);
        let error = rewrite("define void @a() #0 {\n").unwrap_err();
        assert_eq!(error, "expected one `target datalayout` in the LLVM IR, found 0");
    }

    #[test]
    fn version_has_a_number_of_its_own() {
        let text = rewrite(IR).unwrap();
        // The text has three lines of metadata, including `!0` and `!1`.
        assert!(text.ends_with("\n!nvvmir.version = !{!3}\n!3 = !{i32 2, i32 0}\n"), "{text}");
    }

    #[test]
    fn cooperative_assembly_becomes_convergent() {
        let text = rewrite(IR).unwrap();
        for line in [
            "define ptx_kernel void @a([2 x i64] %0) unnamed_addr #1000 {",
            "\"~{memory}\"() #1005, !srcloc !1",
            "\"=r,r\"(i32 0) #1007, !srcloc !1",
            // Only registers: this call may move.
            "\"=r,r\"(i32 %1) #7\n",
            "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) #4\n",
            "module asm \".extern",
            "attributes #7 = { nounwind memory(none) }\n",
            "attributes #1000 = { convergent nounwind \"target-cpu\"=\"sm_80\" }\n",
            "attributes #1004 = { convergent nocallback nounwind }\n",
            "attributes #1005 = { convergent nounwind }\n",
            "attributes #1007 = { convergent nounwind memory(none) }\n",
        ] {
            assert!(text.contains(line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn assembly_without_attributes_is_an_error() {
        let error = rewrite(&IR.replace(" #5, !srcloc !1", "")).unwrap_err();
        assert!(error.starts_with("expected attributes (`#` and a number), found `  tail call"));
    }

    #[test]
    fn header_and_parameters_are_those_of_rustc() {
        assert_eq!(version(PTX).as_deref(), Some("13.5.37 (CL-39125733)"));
        let text = with_header(PTX, "sm_90a").unwrap();
        assert!(text.contains("\n.version 8.0\n.target sm_90a\n"), "{text}");
        let error = with_header(PTX, "sm_90").unwrap_err();
        assert_eq!(error, "expected `.target sm_90` in the PTX, found `.target sm_90a`");
        let kernel =
            Kernel { name: "a".into(), source: "Csr F32".into(), threads: 128, min_blocks: 0 };
        let spec = Spec {
            module: "f".into(),
            family: "f".into(),
            arch: "sm_90a".into(),
            kernels: vec![kernel],
            partial: false,
        };
        // A tensor map in a parameter requires this alignment.
        let text = ptx::with_launch_bounds(&text, &spec).unwrap();
        assert!(text.contains("\t.param .align 64 .b8 a_param_0[128]\n)\n.maxntid 128, 1, 1\n{"));
    }
}
