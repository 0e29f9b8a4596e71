import torch.nn.functional as F


def run_step(link, module, inputs, labels, n):
    """All microbatches forward, then all back. Returns the mean loss on the last stage."""
    kept, losses = [], []
    for k in range(n):
        h = link.recv_forward()
        out = module(inputs[k] if h is None else h)
        if link.next is None:
            out = F.mse_loss(out, labels[k]) / n
            losses.append(out.item())
        link.send_forward(out)
        kept.append((h, out))
    for h, out in kept:
        g = link.recv_backward()
        out.backward(g)
        if h is not None:
            link.send_backward(h.grad)
    return sum(losses)
