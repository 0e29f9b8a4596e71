from tests.log_lab.torch.case import Case
HEALTHY: tuple[Case, ...] = ()
