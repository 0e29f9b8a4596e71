from tests.log_lab.torch.case import Case
LIBRARY: tuple[Case, ...] = ()
