// Completes the request's body with the deployment's model.
import { Model, Response } from "corral-sdk";

export default async function handle(request) {
  const model = await Model.open();
  const sequence = model.sequence(await request.text());
  return Response.text(await sequence.generate(64).text());
}
