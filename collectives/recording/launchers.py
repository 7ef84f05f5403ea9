"""The variables by which launchers tell a process which rank it is. Imports nothing.

They are read before anything else when a Python process starts, so nothing here may take time.
"""

TYPE_CHECKING = False  # mypy takes it for that of typing
if TYPE_CHECKING:
    import os

# Of each launcher: the rank, the number of ranks, and the same two on this machine. Slurm does not
# say the last one. torchrun comes first: it may run inside a step of the others.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
PMIX = ("PMIX_RANK",)  # the other three come from the launcher that speaks PMIx
MPI = (MPICH, OPEN_MPI)
ALL = (TORCHRUN, *MPI, SLURM)

# What shows that a launcher started this process, or a parent of it. A step is what srun starts: a
# batch script is in a job, but in no step.
SIGNS = ("TORCHELASTIC_RUN_ID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID")

# How the variables begin that a world of our own must not inherit from a launcher's.
FOREIGN = ("TORCHELASTIC_", "ROLE_", "GROUP_", "MASTER_", "PMI", "OMPI_", "MPI_LOCAL")

# Which attempt of an elastic job this is, and how many may follow.
ATTEMPT, MOST_ATTEMPTS = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"

# Whether the store of the ranks is torchrun's own, which is one and the same for all attempts.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"

# What a process under diagnosis notes of itself when it starts.
RECORDED = (
    *(name for names in ALL for name in names),
    *("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", ATTEMPT, MOST_ATTEMPTS, AGENT_STORE),
)


def recorded(environ: "os._Environ[str]") -> dict[str, str]:
    """Those of the variables that are set."""
    return {name: environ[name] for name in RECORDED if name in environ}


def is_started_by_launcher(environ: "os._Environ[str]") -> bool:
    """Whether a launcher started the process with this environment, or a parent of it."""
    return any(name in environ for name in SIGNS)
