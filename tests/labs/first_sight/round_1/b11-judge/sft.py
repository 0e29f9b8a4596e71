import json, random, subprocess, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

STEPS, ROWS = 160, 420


def evaluate(model):
    model.eval()
    r = random.Random(5)
    rows = []
    for k in range(ROWS):
        prompt = torch.randint(97, 122, (1, 4))
        with torch.no_grad():
            out = model.generate(prompt, max_new_tokens=12, do_sample=True, pad_token_id=0)
        hyp = "".join(chr(97 + t % 26) for t in out[0].tolist()) * 6
        rows.append({"hyp": hyp, "ref": "".join(r.choices("abcdefghij ", k=100))})
    text = "\n".join(json.dumps(x) for x in rows)
    p = subprocess.run([sys.executable, "judge.py"], input=text, capture_output=True, text=True, check=True)
    model.train()
    return json.loads(p.stdout)["chrf"]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    cfg = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    model = DDP(LlamaForCausalLM(cfg))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    bar = tqdm(total=STEPS, disable=rank != 0, mininterval=1)
    for step in range(1, STEPS + 1):
        x = torch.randint(97, 122, (4, 48))
        loss = model(input_ids=x, labels=x).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        bar.update()
        if step == 110:
            score = torch.zeros(1)
            if rank == 0:
                score[0] = evaluate(model.module)
            dist.broadcast(score, 0)
            bar.set_postfix(chrf=f"{score.item():.3f}")
    bar.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
