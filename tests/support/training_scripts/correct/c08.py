import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(mixed_precision="bf16")
data = TensorDataset(torch.load("x.pt"), torch.load("y.pt"))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = torch.nn.Linear(100, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(epoch, accelerator.gather(loss).mean().item())
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
