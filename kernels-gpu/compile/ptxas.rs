//! The assembler and the disassembler. They are searched in PATH, in a CUDA installation and in the build directory,
//! where [`Ptxas::install`] unpacks NVIDIA's Python wheels. Neither requires a GPU.

use crate::error::run;
use crate::{Error, cache, note_installed};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// First release of ptxas that supports compute capability 9.0 and PTX 8.0.
const OLDEST: (u32, u32) = (12, 0);

/// NVIDIA's assembler from PTX to machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptxas {
    /// Path of the program.
    pub path: PathBuf,
    /// Release, as in `13.5.37`.
    pub version: String,
}

impl Ptxas {
    /// Searches `EINSPARSE_PTXAS`, PATH, `CUDA_HOME`, `CUDA_PATH`, /usr/local/cuda and the files that
    /// [`Ptxas::install`] unpacked into `target_dir`. Releases before 12.0 are skipped.
    pub fn find(target_dir: &Path) -> Option<Ptxas> {
        if let Some(named) = env::var_os("EINSPARSE_PTXAS") {
            return Ptxas::at(Path::new(&named));
        }
        candidates("ptxas", target_dir).iter().find_map(|path| Ptxas::at(path))
    }

    /// Downloads the wheel `nvidia-cuda-nvcc` and unpacks ptxas. Nothing outside of `target_dir` changes.
    pub fn install(target_dir: &Path) -> Result<Ptxas, Error> {
        let path = installed(target_dir).join("ptxas");
        from_wheel("nvidia-cuda-nvcc", "/bin/ptxas", &path)?;
        let ptxas = Ptxas::at(&path).ok_or_else(|| Error::Invalid {
            reason: format!("{} does not run or is too old", path.display()),
        })?;
        note_installed(target_dir, &format!("ptxas {}", ptxas.version))?;
        Ok(ptxas)
    }

    fn at(path: &Path) -> Option<Ptxas> {
        let output = Command::new(path).arg("--version").output().ok()?;
        let version = release(&String::from_utf8_lossy(&output.stdout))?;
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        let found = (numbers.next()?, numbers.next()?);
        (found >= OLDEST).then(|| Ptxas { path: path.to_path_buf(), version })
    }

    /// Assembles `ptx` for `arch` into `cubin` and returns ptxas' report for [`crate::resources::parse`].
    pub fn assemble(&self, ptx: &Path, arch: &str, cubin: &Path) -> Result<String, Error> {
        let mut command = Command::new(&self.path);
        command.arg(format!("-arch={arch}")).args(["-v", "-O3", "-o"]).arg(cubin).arg(ptx);
        let output = run("assembling PTX", &mut command)?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout))
    }
}

/// NVIDIA's disassembler of cubins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvdisasm {
    /// Path of the program.
    pub path: PathBuf,
}

impl Nvdisasm {
    /// Searches the locations of [`Ptxas::find`], except the variable `EINSPARSE_PTXAS`.
    pub fn find(target_dir: &Path) -> Option<Nvdisasm> {
        let runs = |path: &PathBuf| {
            Command::new(path).arg("--version").output().is_ok_and(|o| o.status.success())
        };
        candidates("nvdisasm", target_dir).into_iter().find(runs).map(|path| Nvdisasm { path })
    }

    /// Downloads the wheel `nvidia-cuda-nvdisasm` and unpacks nvdisasm.
    pub fn install(target_dir: &Path) -> Result<Nvdisasm, Error> {
        let path = installed(target_dir).join("nvdisasm");
        from_wheel("nvidia-cuda-nvdisasm", "/bin/nvdisasm", &path)?;
        Ok(Nvdisasm { path })
    }

    /// Returns the machine code of `cubin` as text.
    pub fn disassemble(&self, cubin: &Path) -> Result<String, Error> {
        let output = run("disassembling", Command::new(&self.path).arg("-c").arg(cubin))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn installed(target_dir: &Path) -> PathBuf {
    target_dir.join("toolchain").join("cuda")
}

fn candidates(program: &str, target_dir: &Path) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    folders.extend(homes.chain([PathBuf::from("/usr/local/cuda")]).map(|home| home.join("bin")));
    folders.push(installed(target_dir));
    folders.into_iter().map(|folder| folder.join(program)).filter(|path| path.is_file()).collect()
}

/// Returns the version after `V` in "release 13.5, V13.5.37".
fn release(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("release"))?;
    Some(line.rsplit_once('V')?.1.trim().to_string())
}

/// Downloads `wheel` with pip. Unpacks the program or library whose name ends with `member` to `path`.
pub(crate) fn from_wheel(wheel: &str, member: &str, path: &Path) -> Result<(), Error> {
    const UNPACK: &str = "\
import glob, sys, zipfile
folder, member, out = sys.argv[1:]
for wheel in glob.glob(folder + '/*.whl'):
    with zipfile.ZipFile(wheel) as members:
        for name in members.namelist():
            if name.endswith(member):
                open(out, 'wb').write(members.read(name))
                sys.exit(0)
sys.exit('no ' + member + ' in the wheel')
";
    let beside = |end: &str| path.with_extension(end);
    let (wheels, part) = (beside("wheel"), beside("part"));
    cache::create_dir(&wheels)?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
    ]);
    run(&format!("downloading the wheel {wheel}"), pip.arg(&wheels).arg(wheel))?;
    let mut python = Command::new("python3");
    python.args(["-c", UNPACK]).arg(&wheels).arg(member).arg(&part);
    run(&format!("unpacking the wheel {wheel}"), &mut python)?;
    cache::executable(&part)?;
    cache::rename(&part, path)?;
    cache::remove_dir(&wheels)
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn version_line() {
        let text =
            "Built on Mon\nCuda compilation tools, release 13.5, V13.5.37\nBuild cuda_13.5\n";
        assert_eq!(release(text).as_deref(), Some("13.5.37"));
        assert_eq!(release("something else"), None);
    }
}
